//! Functions of AMD's libraries that XLA is linked with, and that are not simulated: each gives its library's code for
//! that. Without them the first call would end the process, since the engine finds functions when it calls them first.

use crate::status::Status;

/// Declares functions that give a code, whatever their arguments are.
macro_rules! refusals {
    ($($code:literal: $($name:ident)*;)*) => {$($(
        #[doc = concat!("`", stringify!($name), "`, which gives ", stringify!($code), ".")]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub extern "C" fn $name() -> Status {
            $code
        }
    )*)*};
}

refusals! {
    // rocblas_status_not_implemented.
    2:
        rocblas_cgemm rocblas_cgemm_strided_batched rocblas_cgemv rocblas_cscal rocblas_csscal rocblas_ctrsm
        rocblas_ctrsm_batched rocblas_dgemm rocblas_dgemm_strided_batched rocblas_dgemv rocblas_dscal
        rocblas_dtrsm rocblas_dtrsm_batched rocblas_gemm_ex rocblas_gemm_ex_get_solutions
        rocblas_gemm_strided_batched_ex rocblas_gemm_strided_batched_ex_get_solutions rocblas_hgemm
        rocblas_hgemm_strided_batched rocblas_sgemm rocblas_sgemm_strided_batched rocblas_sgemv rocblas_sscal
        rocblas_strsm rocblas_strsm_batched rocblas_zdscal rocblas_zgemm rocblas_zgemm_strided_batched
        rocblas_zgemv rocblas_zscal rocblas_ztrsm rocblas_ztrsm_batched;
    // HIPBLAS_STATUS_NOT_SUPPORTED.
    7:
        hipblasLtMatmul hipblasLtMatmulAlgoGetHeuristic hipblasLtMatmulDescCreate hipblasLtMatmulDescDestroy
        hipblasLtMatmulDescSetAttribute hipblasLtMatmulPreferenceCreate hipblasLtMatmulPreferenceDestroy
        hipblasLtMatmulPreferenceSetAttribute hipblasLtMatrixLayoutCreate hipblasLtMatrixLayoutDestroy
        hipblasLtMatrixLayoutSetAttribute;
    // HIPFFT_NOT_IMPLEMENTED.
    14:
        hipfftCreate hipfftDestroy hipfftExecC2C hipfftExecC2R hipfftExecD2Z hipfftExecR2C hipfftExecZ2D
        hipfftExecZ2Z hipfftMakePlan1d hipfftMakePlan2d hipfftMakePlan3d hipfftMakePlanMany hipfftPlan1d
        hipfftPlan2d hipfftPlan3d hipfftPlanMany hipfftSetAutoAllocation hipfftSetStream hipfftSetWorkArea;
    // miopenStatusNotImplemented.
    6:
        miopenBatchNormalizationBackward miopenBatchNormalizationForwardInference
        miopenBatchNormalizationForwardTraining miopenCTCLoss miopenCompileFusionPlan
        miopenConvolutionBackwardDataCompileSolution miopenConvolutionBackwardDataGetSolution
        miopenConvolutionBackwardDataGetSolutionCount miopenConvolutionBackwardDataGetSolutionWorkspaceSize
        miopenConvolutionBackwardDataGetWorkSpaceSize miopenConvolutionBackwardDataImmediate
        miopenConvolutionBackwardWeightsCompileSolution miopenConvolutionBackwardWeightsGetSolution
        miopenConvolutionBackwardWeightsGetSolutionCount
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize
        miopenConvolutionBackwardWeightsGetWorkSpaceSize miopenConvolutionBackwardWeightsImmediate
        miopenConvolutionForwardCompileSolution miopenConvolutionForwardGetSolution
        miopenConvolutionForwardGetSolutionCount miopenConvolutionForwardGetSolutionWorkspaceSize
        miopenConvolutionForwardGetWorkSpaceSize miopenConvolutionForwardImmediate
        miopenCreateActivationDescriptor miopenCreateCTCLossDescriptor miopenCreateConvolutionDescriptor
        miopenCreateDropoutDescriptor miopenCreateFusionPlan miopenCreateLRNDescriptor
        miopenCreateOpActivationForward miopenCreateOpBiasForward miopenCreateOpConvForward
        miopenCreateOperatorArgs miopenCreatePoolingDescriptor miopenCreateRNNDescriptor
        miopenCreateTensorDescriptor miopenDestroyCTCLossDescriptor miopenDestroyConvolutionDescriptor
        miopenDestroyDropoutDescriptor miopenDestroyLRNDescriptor miopenDestroyOperatorArgs
        miopenDestroyPoolingDescriptor miopenDestroyRNNDescriptor miopenDestroyTensorDescriptor
        miopenDropoutGetStatesSize miopenExecuteFusionPlan_v2 miopenFindConvolutionBackwardDataAlgorithm
        miopenFindConvolutionBackwardWeightsAlgorithm miopenFindConvolutionForwardAlgorithm
        miopenFusionPlanGetOp miopenFusionPlanGetWorkSpaceSize miopenGetCTCLossWorkspaceSize
        miopenGetConvolutionNdDescriptor miopenGetRNNParamsDescriptor miopenGetRNNParamsSize
        miopenGetRNNTrainingReserveSize miopenGetRNNWorkspaceSize miopenGetTensorDescriptor
        miopenInitConvolutionNdDescriptor miopenLRNBackward miopenLRNForward miopenLRNGetWorkSpaceSize
        miopenPoolingBackward miopenPoolingForward miopenPoolingGetWorkSpaceSizeV2 miopenRNNBackwardData
        miopenRNNBackwardWeights miopenRNNForwardInference miopenRNNForwardTraining
        miopenSetActivationDescriptor miopenSetCTCLossDescriptor miopenSetConvolutionAttribute
        miopenSetConvolutionGroupCount miopenSetDropoutDescriptor miopenSetLRNDescriptor
        miopenSetNdPoolingDescriptor miopenSetOpArgsActivForward miopenSetOpArgsBiasForward
        miopenSetOpArgsConvForward miopenSetPoolingIndexType miopenSetRNNDescriptor_V2 miopenSetTensorDescriptor
        miopenSetTensorDescriptorV2;
    // ROCPROFILER_STATUS_ERROR.
    1:
        rocprofiler_assign_callback_thread rocprofiler_configure_buffer_tracing_service
        rocprofiler_configure_callback_tracing_service
        rocprofiler_configure_external_correlation_id_request_service rocprofiler_context_is_valid
        rocprofiler_create_buffer rocprofiler_create_callback_thread rocprofiler_create_context
        rocprofiler_flush_buffer rocprofiler_get_timestamp rocprofiler_iterate_callback_tracing_kind_operations
        rocprofiler_iterate_callback_tracing_kinds rocprofiler_query_available_agents
        rocprofiler_query_callback_tracing_kind_name rocprofiler_query_callback_tracing_kind_operation_name
        rocprofiler_start_context rocprofiler_stop_context;
}
